"""A self-contained HTML page about runs, made by ``gluonlab report RUN [RUN...]``."""
