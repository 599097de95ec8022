"""A self-contained HTML page about runs, made by ``python -m gluonlab.report RUN [RUN...]``."""
