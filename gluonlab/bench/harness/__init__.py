"""How everything here is measured: worker processes and rounds, records, comparisons."""
