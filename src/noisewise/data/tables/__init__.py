"""Tables: what a column may hold, and how rows become numbers."""
