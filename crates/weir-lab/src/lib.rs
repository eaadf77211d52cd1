//! The laboratory: test origin, benchmark harness, reports.
