//! The ops of random steps, on tensors whose elements are whole numbers within known bounds.
//!
//! Invariant: whatever is made is whole again, and small enough that sums of it are exact.

use super::random::Random;
use turret::base::DType;
use turret::graph::{Graph, Tensor};
use turret::ops::find;

/// No element is larger where a bound is this: what variables hold after all their changes.
pub const LARGEST: f64 = 4096.0;
/// No element is larger of what a variable is changed by.
pub const SMALL: f64 = 64.0;
/// Beyond this, elements are clipped before they are summed or multiplied.
const MOST: f64 = (1 << 22) as f64;
/// The most elements of a tensor.
const MOST_ELEMENTS: usize = 24_000;

/// The sizes that steps are made of: around the elements of a tile, long rows, single columns, as many rows as columns,
/// and more axes.
const FAMILIES: [&[usize]; 24] = [
    &[65, 64],
    &[64, 64],
    &[81, 81],
    &[4095, 1],
    &[4096, 1],
    &[4097, 1],
    &[1, 4095],
    &[1, 4097],
    &[4097],
    &[3, 1366],
    &[2, 2049],
    &[1366, 3],
    &[128, 40],
    &[257, 16],
    &[17, 17, 17],
    &[16, 16, 17],
    &[4, 32, 33],
    &[3, 1, 1400],
    &[90, 50, 1],
    &[2, 3, 5, 150],
    &[9, 8, 8, 9],
    &[1, 1, 4100],
    &[1, 16_390],
    &[0, 5],
];

struct Entry<'g> {
    tensor: Tensor<'g>,
    bound: f64,
    item: usize,
}

/// The tensors so far.
pub struct Pool<'g> {
    family: &'static [usize],
    entries: Vec<Entry<'g>>,
}

/// What an op made, and from which tensors of the pool.
pub struct Made<'g> {
    pub tensors: Vec<Tensor<'g>>,
    pub from: Vec<usize>,
    pub bound: f64,
}

fn dims(t: Tensor<'_>) -> Vec<usize> {
    t.shape().to_dims().unwrap_or_else(|| panic!("{t:?} has no known shape")).to_vec()
}

fn count(t: Tensor<'_>) -> usize {
    dims(t).iter().product()
}

/// The sizes that two tensors have together, if they broadcast.
fn together(x: &[usize], y: &[usize]) -> Option<Vec<usize>> {
    let rank = x.len().max(y.len());
    let at = |dims: &[usize], i: usize| (i + dims.len()).checked_sub(rank).map_or(1, |i| dims[i]);
    let size = |i: usize| match (at(x, i), at(y, i)) {
        (1, d) | (d, 1) => Some(d),
        (a, b) => (a == b).then_some(a),
    };
    let sizes: Vec<usize> = (0..rank).map(size).collect::<Option<_>>()?;
    (sizes.iter().product::<usize>() <= MOST_ELEMENTS).then_some(sizes)
}

impl<'g> Pool<'g> {
    pub fn new(random: &mut Random) -> Pool<'g> {
        Pool { family: random.pick(&FAMILIES), entries: Vec::new() }
    }

    /// Sizes of the step's family: whole, some axes 1, fewer axes, or none.
    pub fn sizes(&self, random: &mut Random) -> Vec<usize> {
        let whole = self.family.to_vec();
        match random.below(10) {
            0 => whole[1..].to_vec(),
            1 => Vec::new(),
            2 => whole.iter().map(|d| if random.one_in(2) { 1 } else { *d }).collect(),
            3 => whole[..whole.len() - 1].to_vec(),
            4 if whole.len() == 2 => vec![whole[1], whole[0]],
            _ => whole,
        }
    }

    pub fn add(&mut self, tensor: Tensor<'g>, bound: f64, item: usize) {
        self.entries.push(Entry { tensor, bound, item });
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn tensor(&self, i: usize) -> Tensor<'g> {
        self.entries[i].tensor
    }

    pub fn bound(&self, i: usize) -> f64 {
        self.entries[i].bound
    }

    pub fn item(&self, i: usize) -> usize {
        self.entries[i].item
    }

    /// The bound of an item.
    pub fn bound_of(&self, item: usize) -> f64 {
        self.entries.iter().find(|e| e.item == item).map_or(0.0, |e| e.bound)
    }

    fn among(&self, random: &mut Random, fits: impl Fn(&Entry<'g>) -> bool) -> Option<usize> {
        let all: Vec<usize> = (0..self.entries.len()).filter(|i| fits(&self.entries[*i])).collect();
        // Those made last are read more often, so that chains come about.
        let from = if random.one_in(2) { all.len().saturating_sub(6) } else { 0 };
        if all.is_empty() { None } else { Some(random.pick(&all[from..])) }
    }

    /// A tensor of this type and these sizes.
    pub fn like(&self, random: &mut Random, dtype: DType, sizes: &[usize]) -> Option<usize> {
        self.among(random, |e| e.tensor.dtype() == dtype && dims(e.tensor) == sizes)
    }

    /// A tensor of numbers with elements.
    pub fn number(&self, random: &mut Random) -> Option<usize> {
        self.among(random, |e| e.tensor.dtype() != DType::Bool && count(e.tensor) > 0)
    }

    /// A tensor that is no larger than so much, by clipping one that is.
    fn at_most(&self, i: usize, most: f64) -> (Tensor<'g>, f64) {
        let (x, bound) = (self.tensor(i), self.bound(i));
        if bound <= most || x.dtype() == DType::Bool {
            return (x, bound);
        }
        let number = |value: i32| x.graph().constant(value).cast(x.dtype());
        (x.minimum(number(8)).maximum(number(-8)), 8.0)
    }

    /// One more op.
    pub fn op(&self, g: &'g Graph, random: &mut Random) -> Option<Made<'g>> {
        let x = self.among(random, |_| true)?;
        match self.tensor(x).dtype() {
            DType::Bool => self.of_bools(g, random, x),
            _ => match random.below(5) {
                0 => self.reduction(random, x),
                1 => self.other_sizes(g, random, x),
                2 if !random.one_in(3) => self.product(random, x).or_else(|| self.pair(random, x)),
                2 | 3 => self.pair(random, x),
                _ => self.alone(g, random, x),
            },
        }
    }

    fn of_bools(&self, g: &'g Graph, random: &mut Random, x: usize) -> Option<Made<'g>> {
        let t = self.tensor(x);
        let one = |tensor: Tensor<'g>| Made { tensors: vec![tensor], from: vec![x], bound: 1.0 };
        let axis = if dims(t).is_empty() { None } else { Some(random.below(dims(t).len()) as i32) };
        let keeps = random.one_in(2);
        Some(match random.below(6) {
            0 => one(t.logical_not()),
            1 => one(t.cast(DType::F32)),
            2 => {
                let y = self.among(random, |e| e.tensor.dtype() == DType::Bool && self.meets(t, e.tensor))?;
                let tensors = vec![t.logical_and(self.tensor(y))];
                Made { tensors, from: vec![x, y], bound: 1.0 }
            }
            3 if axis.is_some() => {
                one(g.node_of(find("Any")?).input(t).input(g.constant(axis?)).attr("keep_dims", keeps).tensor())
            }
            _ => {
                let meets = |e: &Entry<'g>| e.tensor.dtype() == DType::F32 && self.meets(t, e.tensor);
                let (a, b) = (self.among(random, meets)?, self.among(random, meets)?);
                together(&dims(t), &together(&dims(self.tensor(a)), &dims(self.tensor(b)))?)?;
                let tensors = vec![t.select(self.tensor(a), self.tensor(b))];
                Made { tensors, from: vec![x, a, b], bound: self.bound(a).max(self.bound(b)) }
            }
        })
    }

    fn meets(&self, x: Tensor<'g>, y: Tensor<'g>) -> bool {
        together(&dims(x), &dims(y)).is_some()
    }

    fn alone(&self, g: &'g Graph, random: &mut Random, x: usize) -> Option<Made<'g>> {
        let (t, bound) = (self.tensor(x), self.bound(x));
        let floats = t.dtype().is_floating();
        let (small, of_small) = self.at_most(x, 1024.0);
        let three = || g.constant(3i32).cast(t.dtype());
        let (tensor, bound) = match random.below(16) {
            0 => (t.relu(), bound),
            1 => (-t, bound),
            2 => (t.abs(), bound),
            3 => (small.square(), of_small * of_small),
            4 => (t.identity("same"), bound),
            5 => (t.stop_gradient(), bound),
            6 if floats => ((t.tanh() * g.constant(4i32).cast(t.dtype())).floor(), 4.0),
            7 => (small * three(), 3.0 * of_small),
            8 => (three() - small, of_small + 3.0),
            9 => (t.sign(), 1.0),
            10 => (t.zeros_like(), 0.0),
            11 => (t.ones_like(), 1.0),
            12 if floats => (t.check_numerics("never"), bound),
            13 => (self.at_most(x, MOST).0.cast(random.pick(&[DType::F32, DType::F64, DType::I32])), bound.min(MOST)),
            14 => (t.greater(three()), 1.0),
            _ => (t.maximum(three()), bound.max(3.0)),
        };
        Some(Made { tensors: vec![tensor], from: vec![x], bound })
    }

    fn pair(&self, random: &mut Random, x: usize) -> Option<Made<'g>> {
        let t = self.tensor(x);
        let meets = |e: &Entry<'g>| e.tensor.dtype() == t.dtype() && self.meets(t, e.tensor);
        // Sometimes the same value twice.
        let y = if random.one_in(6) { x } else { self.among(random, meets)? };
        let (x, y) = if random.one_in(2) { (x, y) } else { (y, x) };
        let ((a, of_a), (b, of_b)) = (self.at_most(x, 1024.0), self.at_most(y, 1024.0));
        let (whole, other) = (self.tensor(x), self.tensor(y));
        let most = self.bound(x).max(self.bound(y));
        let (tensor, bound) = match random.below(10) {
            0 | 1 => (a + b, of_a + of_b),
            2 => (a - b, of_a + of_b),
            3 => (a * b, of_a * of_b),
            4 => (whole.maximum(other), most),
            5 => (whole.minimum(other), most),
            6 => (a.squared_difference(b), (of_a + of_b) * (of_a + of_b)),
            7 => (whole.greater(other), 1.0),
            8 => (whole.equal(other), 1.0),
            _ if dims(a) == dims(b) => (t.graph().add_n([a, b, a, b, a]), 3.0 * of_a + 2.0 * of_b),
            _ => (whole.less_equal(other), 1.0),
        };
        Some(Made { tensors: vec![tensor], from: vec![x, y], bound })
    }

    fn reduction(&self, random: &mut Random, x: usize) -> Option<Made<'g>> {
        let rank = dims(self.tensor(x)).len();
        let axes: Vec<i32> = (0..rank as i32).filter(|_| random.one_in(2)).collect();
        let keeps = random.one_in(2);
        let reduced: usize = axes.iter().map(|a| dims(self.tensor(x))[*a as usize]).product();
        let (sizes, most) = (dims(self.tensor(x)), MOST / reduced.max(1) as f64);
        let (small, of_small) = self.at_most(x, most);
        let (whole, bound) = (self.tensor(x), self.bound(x));
        let is_floating = whole.dtype().is_floating();
        let (tensor, bound) = match random.below(8) {
            0 => (small.sum(), of_small.min(MOST / count(small).max(1) as f64) * count(small) as f64),
            1 | 2 if reduced > 0 => (whole.max_axes(&axes, keeps), bound),
            3 if reduced > 0 => (whole.min_axes(&axes, keeps), bound),
            // Such means are exact, and their whole part is whole.
            4 if reduced.is_power_of_two() && is_floating => (small.mean_axes(&axes, keeps).floor(), of_small + 1.0),
            _ => (small.sum_axes(&axes, keeps), of_small * reduced as f64),
        };
        let over = bound > MOST || sizes.iter().product::<usize>() == 0 && reduced == 0 && bound.is_nan();
        (!over).then(|| Made { tensors: vec![tensor], from: vec![x], bound })
    }

    fn product(&self, random: &mut Random, x: usize) -> Option<Made<'g>> {
        let t = self.tensor(x);
        let (of_x, turns) = (dims(t), [random.one_in(2), random.one_in(2)]);
        let rank = of_x.len();
        if rank < 2 || !t.dtype().is_floating() {
            return None;
        }
        let (n, k) = if turns[0] { (of_x[rank - 1], of_x[rank - 2]) } else { (of_x[rank - 2], of_x[rank - 1]) };
        let fits = |e: &Entry<'g>| {
            let of_y = dims(e.tensor);
            if of_y.len() != rank || of_y[..rank - 2] != of_x[..rank - 2] || e.tensor.dtype() != t.dtype() {
                return false;
            }
            let (l, m) = (of_y[rank - 2], of_y[rank - 1]);
            let (l, m) = if turns[1] { (m, l) } else { (l, m) };
            l == k && n * m * of_x[..rank - 2].iter().product::<usize>() <= MOST_ELEMENTS && n * m * k < 2_000_000
        };
        let y = self.among(random, fits)?;
        let most = (MOST / k.max(1) as f64).sqrt().floor().min(64.0);
        let ((a, of_a), (b, of_b)) = (self.at_most(x, most), self.at_most(y, most));
        let tensor = match rank {
            2 => a.matmul_with(b, turns[0], turns[1]),
            _ => a.batch_matmul(b, turns[0], turns[1]),
        };
        Some(Made { tensors: vec![tensor], from: vec![x, y], bound: of_a * of_b * k as f64 })
    }

    fn other_sizes(&self, g: &'g Graph, random: &mut Random, x: usize) -> Option<Made<'g>> {
        let (t, sizes) = (self.tensor(x), dims(self.tensor(x)));
        let (rank, elements) = (sizes.len(), count(t));
        let axis = if rank == 0 { 0 } else { random.below(rank) };
        let at = |axis: usize| sizes.get(axis).copied().unwrap_or(1);
        let whole: Vec<i32> = self.family.iter().map(|d| *d as i32).collect();
        let made = match random.below(12) {
            0 if rank == 2 => vec![t.transpose(&[1, 0])],
            1 if rank == 3 => vec![t.transpose(&random.pick(&[[0, 2, 1], [1, 0, 2], [2, 1, 0]]))],
            2 => vec![t.reshape([-1])],
            3 if elements == self.family.iter().product::<usize>() => vec![t.reshape(whole)],
            4 if rank < 4 => vec![t.expand_dims(axis as i32)],
            5 if rank > 0 && at(axis).is_multiple_of(2) => t.split(2, axis as i32),
            6 if rank > 0 && at(axis) > 1 => t.split_sizes(&[1, -1], axis as i32),
            7 if rank > 0 && elements * 2 <= MOST_ELEMENTS => vec![g.concat([t, t], axis as i32)],
            8 if rank > 0 && at(axis) > 0 => {
                let indices: Vec<i32> = (0..2).map(|_| random.below(at(axis)) as i32).collect();
                vec![t.gather(g.constant(indices), axis as i32)]
            }
            9 if together(&sizes, self.family).is_some_and(|d| d == self.family) => vec![t.broadcast_to(self.family)],
            10 if rank > 0 && elements * 2 <= MOST_ELEMENTS => {
                vec![t.tile(&(0..rank).map(|i| 1 + i32::from(i == axis)).collect::<Vec<_>>())]
            }
            _ if rank > 1 && elements > 0 => vec![t.reshape([at(0) as i32, -1])],
            _ => return None,
        };
        Some(Made { tensors: made, from: vec![x], bound: self.bound(x) })
    }
}
