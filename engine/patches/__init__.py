"""Reading, creating and applying patches, done nowhere else; pure and light, so that pages may use it too.

``trees`` files on the host · ``commands`` git and patch within limits · ``diff`` making patches · ``apply``
applying them, and which paths they touch · ``harness`` the official harness's fallbacks · ``structure`` files
and hunks of a patch · ``sections`` its text by file · ``reverse`` turning one around.
"""
