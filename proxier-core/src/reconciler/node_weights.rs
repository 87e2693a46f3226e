//! Weights of nodes, as their objects have them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::objects::NodeObject;
use crate::snapshot::{Node, Rejection};

/// Weights of nodes by name, kept up to date one node at a time.
#[derive(Debug, Default)]
pub(super) struct NodeWeights {
    /// Those other than 1.
    weights: Arc<BTreeMap<Box<str>, u16>>,
    rejections: BTreeMap<Box<str>, Vec<Rejection>>,
    changed: bool,
}

impl NodeWeights {
    /// Takes a new or changed Node. Returns whether its weight changed.
    pub(super) fn upsert(&mut self, object: &NodeObject) -> bool {
        let name = &*object.metadata.name;
        let mut rejections = Vec::new();
        let weight = Node::weight(object, &mut rejections).filter(|weight| *weight != 1);
        if rejections.is_empty() {
            self.rejections.remove(name);
        } else {
            self.rejections.insert(name.into(), rejections);
        }
        self.set(name, weight)
    }

    /// Forgets a Node. Returns whether it had a weight.
    pub(super) fn delete(&mut self, name: &str) -> bool {
        self.rejections.remove(name);
        self.set(name, None)
    }

    fn set(&mut self, name: &str, weight: Option<u16>) -> bool {
        if self.weights.get(name).copied() == weight {
            return false;
        }
        let weights = Arc::make_mut(&mut self.weights);
        match weight {
            Some(weight) => weights.insert(name.into(), weight),
            None => weights.remove(name),
        };
        self.changed = true;
        true
    }

    /// All of them other than 1.
    pub(super) fn all(&self) -> &Arc<BTreeMap<Box<str>, u16>> {
        &self.weights
    }

    /// Whether any changed since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Weights that are none.
    pub(super) fn rejections(&self) -> impl Iterator<Item = &Rejection> {
        self.rejections.values().flatten()
    }
}
