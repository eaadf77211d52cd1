//! Configuration: KDL or JSON text, checked and compiled into an immutable plan.
