"""``bench optimize``: networks of tutorials, as they are and after `gluonlab.optimize`."""
