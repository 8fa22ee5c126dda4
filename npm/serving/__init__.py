"""HTTP and the web page: see npm/serving/app.py."""
