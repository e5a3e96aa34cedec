//! The random generators of a session, one for each random node, on whatever device the node is.
//!
//! Invariant: all plans of a session draw from the same generators, so which plan ran last makes no difference.

use crate::base::Result;
use crate::device::{DeviceInfo, DeviceMemory, MemoryUse};
use crate::graph::{Generator, Node, NodeId, Seeds};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// A generator's three words on a CUDA GPU; plans keep its address.
pub(super) type OnGpu = Arc<Mutex<DeviceMemory>>;

#[derive(Default)]
pub(super) struct Generators {
    host: HashMap<NodeId, Arc<Generator>>,
    gpu: HashMap<NodeId, OnGpu>,
    /// Places to go on from, of nodes that no plan has drawn from yet.
    set: HashMap<NodeId, [u64; 3]>,
}

impl Generators {
    /// The generator of a node that draws on the host.
    pub fn on_host(&mut self, id: NodeId, seeds: Seeds) -> Arc<Generator> {
        let made = self.host.entry(id).or_insert_with(|| Arc::new(Generator::new(seeds)));
        if let Some(words) = self.set.remove(&id) {
            made.set(words);
        }
        made.clone()
    }

    /// The state of a node on a CUDA GPU, which starts as `first` says.
    ///
    /// # Errors
    /// What the device says.
    pub fn on_gpu(
        &mut self,
        id: NodeId,
        first: &[u8],
        info: &DeviceInfo,
        account: &Arc<MemoryUse>,
    ) -> Result<(OnGpu, u64)> {
        if let Some(there) = self.gpu.get(&id) {
            return Ok((there.clone(), lock(there).address().addr() as u64));
        }
        let mut memory = DeviceMemory::allocate(info, account, first.len())?;
        match self.set.get(&id).map(to_bytes).filter(|b| b.len() == first.len()) {
            Some(words) => memory.write(0, &words)?,
            None => memory.write(0, first)?,
        }
        self.set.remove(&id);
        let address = memory.address().addr() as u64;
        let made = Arc::new(Mutex::new(memory));
        self.gpu.insert(id, made.clone());
        Ok((made, address))
    }

    /// Where a node's generator stands; `None` where nothing has drawn from it and nothing set it.
    ///
    /// # Errors
    /// What the device says.
    pub fn words(&self, id: NodeId) -> Result<Option<[u64; 3]>> {
        if let Some(generator) = self.host.get(&id) {
            return Ok(Some(generator.words()));
        }
        let Some(memory) = self.gpu.get(&id) else { return Ok(self.set.get(&id).copied()) };
        let mut words = [[0; 8]; 3];
        lock(memory).read(0, words.as_flattened_mut())?;
        Ok(Some(words.map(u64::from_le_bytes)))
    }

    /// Sets where a node's generator stands, whether or not a plan draws from it yet.
    ///
    /// # Errors
    /// What the device says.
    pub fn set(&mut self, id: NodeId, words: [u64; 3]) -> Result<()> {
        if let Some(generator) = self.host.get(&id) {
            generator.set(words);
        } else if let Some(memory) = self.gpu.get(&id) {
            lock(memory).write(0, &to_bytes(&words))?;
        } else {
            self.set.insert(id, words);
        }
        Ok(())
    }
}

fn to_bytes(words: &[u64; 3]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn lock(memory: &OnGpu) -> MutexGuard<'_, DeviceMemory> {
    // Nothing that holds the lock can leave the memory half changed.
    memory.lock().unwrap_or_else(|e| e.into_inner())
}

/// The random nodes of a graph but those that only make variables' initial values, and their seeds.
pub(super) fn random_nodes(nodes: &[Arc<Node>], initializers: &[NodeId]) -> Vec<(Arc<Node>, Seeds)> {
    let random: Vec<(Arc<Node>, Seeds)> =
        nodes.iter().filter_map(|n| Some((n.clone(), n.op.seeds(&n.attrs)?))).collect();
    if random.is_empty() {
        return random;
    }
    let mut initial: HashSet<NodeId> = HashSet::new();
    let mut stack = initializers.to_vec();
    while let Some(id) = stack.pop() {
        if initial.insert(id) {
            stack.extend(nodes[id.index()].inputs.iter().map(|i| i.node));
        }
    }
    let mut read: HashSet<NodeId> = HashSet::new();
    for node in nodes.iter().filter(|n| !initial.contains(&n.id)) {
        read.extend(node.inputs.iter().map(|i| i.node));
    }
    random.into_iter().filter(|(n, _)| !initial.contains(&n.id) || read.contains(&n.id)).collect()
}
