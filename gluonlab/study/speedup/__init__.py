"""Why several devices are not faster: where a step's time goes, and what was found to help."""
