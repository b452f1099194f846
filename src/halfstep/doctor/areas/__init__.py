"""Checks by what they look at: a file for each area, each check a generator of findings and of sentences about what is well."""
