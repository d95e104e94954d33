"""Grafana dashboards as code, and the page under /dash. Metrics: `draftwing_serve.metrics`."""
