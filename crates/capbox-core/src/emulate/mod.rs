//! Rows built from other rows.
