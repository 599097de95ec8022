"""What the network of a finished run says of pictures: python -m gluonlab.predict."""
