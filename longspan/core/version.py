"""The version of the package, in the one place that needs no installation to be read."""

VERSION = "0.1.0"
