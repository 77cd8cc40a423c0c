//! Life and death.

use crate::support::*;

tests! {}
