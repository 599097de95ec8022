"""Folders of studies, as studies that were broken off leave them."""

from gluonlab.study.study import as_plain
from gluonlab.study.sweep import StudyFolder


def begin_study(study, options, folder):
    """A study with these options, of which nothing has been measured."""
    StudyFolder.open(str(folder), study, as_plain(options)).close()
