"""Every write of the web application, one module per feature, keyword arguments only.

Views, API, commands and workers all call these; nothing else changes a row.
"""
