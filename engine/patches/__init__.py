"""Reading, creating and applying patches, done nowhere else; pure and light enough for pages.

``trees`` files on the host · ``commands`` git and patch within limits · ``diff`` creation · ``apply``
application and touched paths · ``harness`` the official harness's fallbacks · ``structure`` files and hunks
· ``sections`` text by file · ``reverse`` reversal.
"""
