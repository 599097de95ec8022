"""Folders of interrupted studies."""

from gluonlab.study.study_report import to_plain_values
from gluonlab.study.sweep import StudyFolder


def begin_study(study, options, folder):
    """Write the folder of a study without measurements."""
    StudyFolder.open(str(folder), study, to_plain_values(options)).close()
