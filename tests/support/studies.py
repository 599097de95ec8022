"""Folders of interrupted studies."""

from gluonlab.study.study import as_plain
from gluonlab.study.sweep import StudyFolder


def begin_study(study, options, folder):
    """Write the folder of a study without measurements."""
    StudyFolder.open(str(folder), study, as_plain(options)).close()
