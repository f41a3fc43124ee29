"""Analysis: what explains the time of a study's kernels. Everything here is a function of rows of trials."""

from deepgen.report.analysis.correlation import Estimate, Relation
from deepgen.report.analysis.importance import Importance
from deepgen.report.analysis.report import LEVEL, THRESHOLD, Group, Report, analyze

__all__ = ["LEVEL", "THRESHOLD", "Estimate", "Group", "Importance", "Relation", "Report", "analyze"]
