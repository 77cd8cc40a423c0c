//! Attacks.

use crate::support::*;

tests! {}
