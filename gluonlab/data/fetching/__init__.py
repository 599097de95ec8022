"""Downloads, unpacks, finds and verifies the files of data sets."""
