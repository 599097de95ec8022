"""The states of optimizers: by parameter name, in files of our own and of gluon.Trainer."""
