"""Shared code of the web application; imports only the models of the other packages."""
