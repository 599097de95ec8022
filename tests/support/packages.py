"""Packages that a process of its own finds."""


def package(folder, name, code):
    """A package ``name`` in ``folder`` that does ``code`` when it is imported."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)
    return str(folder)
