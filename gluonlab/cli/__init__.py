"""Behavior that all commands share: options, settings files, output and exit statuses."""
