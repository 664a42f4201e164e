// Package deploy holds what others' programs are given to watch a fleet: alerts for Prometheus and dashboards for Grafana. docs/observability.md says how to use them.
package deploy
