"""Clusters: task files, SSH, Ray nodes on hosts, and the driver that tunes on them."""
