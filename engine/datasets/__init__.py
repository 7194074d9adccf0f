"""Tasks: fault injection, curation from source trees, importers and the dataset store."""
