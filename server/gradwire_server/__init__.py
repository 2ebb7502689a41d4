"""The service: ingest, runs, directives, verdicts, metrics and pages."""
