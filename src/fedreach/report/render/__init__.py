"""From numbers to tables, records and the page."""
