"""The sentences of the pages: plain functions from a view of a run to text, one module for each subject.

They only choose and fill in; every number was computed by `runs.reading`. Code words never appear in them.
"""
