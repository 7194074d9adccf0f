"""Families that go for what is around the tests: patches, files, git, resources, which run it is."""
