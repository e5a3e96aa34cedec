//! Prepares the kernels of fused host nodes: each op's own, for tiles.
//!
//! Absent: what is fused (`plan/tiling.rs`), and how tiles run (`device/tiles.rs`).

use crate::device::cuda::Operand;
use crate::device::{CpuKernel, Cut, Partial, Place, Product, TILE, TilePart, TileStream, TileView, TiledKernel};
use crate::graph::{KernelContext, Reduction, TensorDesc};
use crate::plan::{Part, Tiled, tile_desc};
use smallvec::SmallVec;

/// Elements of a block without a product.
const BLOCK: usize = 1 << 15;

/// The kernel of a fused node.
///
/// # Errors
/// What an op's kernel has against its sizes.
pub(super) fn tiled_kernel(tiled: &Tiled) -> Result<CpuKernel, String> {
    let rows: usize = tiled.dims[..tiled.row_axes].iter().product();
    let columns: usize = tiled.dims[tiled.row_axes..].iter().product();
    let mut tile_rows = (TILE / columns.max(1)).clamp(1, rows.max(1));
    let mut cut = Cut::even(rows, BLOCK / columns.max(1));
    let mut anywhere = true;
    let mut product = None;
    if let Some(output) = tiled.product_in {
        let part = &tiled.parts[0];
        let kernel = part.with_kernel_context(|c| part.op.row_kernel(c)).ok_or("it has no kernel by rows")?;
        let inputs = part.operands.iter().map(|o| match o {
            Operand::Input(i) => Ok(*i),
            Operand::Step(_) => Err("a product comes first"),
        });
        // A row may be a whole image, where the product's are its pixels.
        let of_row = kernel.cut.rows / rows.max(1);
        (cut, anywhere) = (kernel.cut.coarser(of_row), kernel.anywhere);
        product = Some(Product { kernel, rows: of_row, inputs: inputs.collect::<Result<_, _>>()?, output });
    }
    if anywhere {
        cut.block = cut.block.next_multiple_of(tile_rows);
    } else {
        // As even as can be.
        tile_rows = cut.block.div_ceil(cut.block.div_ceil(tile_rows));
    }
    let reductions = tiled.parts.iter().map(Part::reduction).collect();
    let layout = Layout { tiled, reductions, cut, columns, tile_rows };
    let places = layout.places();
    let first = usize::from(product.is_some());
    let parts = (first..tiled.parts.len()).map(|i| layout.part(i, &places)).collect::<Result<Vec<_>, _>>()?;
    let partials = (0..tiled.parts.len()).filter_map(|i| layout.partial(i)).collect::<Result<Vec<_>, _>>()?;
    Ok(TiledKernel { cut, tile_rows, product, parts, partials, scratch_bytes: places.scratch_bytes }.kernel())
}

/// What computes an input of an update by tiles.
///
/// # Errors
/// As [`tiled_kernel`].
pub(super) fn tile_stream(tiled: &Tiled) -> Result<TileStream, String> {
    let rows: usize = tiled.dims.iter().product();
    let (tile_rows, reductions) = (TILE.min(rows), tiled.parts.iter().map(|_| None).collect());
    let layout = Layout { tiled, reductions, cut: Cut::even(rows, tile_rows), columns: 1, tile_rows };
    let places = layout.places();
    let parts = (0..tiled.parts.len()).map(|i| layout.part(i, &places)).collect::<Result<Vec<_>, _>>()?;
    let result = parts.last().ok_or("it has no ops")?.to;
    let kernel = TiledKernel {
        cut: layout.cut,
        tile_rows,
        product: None,
        parts,
        partials: Vec::new(),
        scratch_bytes: places.scratch_bytes,
    };
    Ok(TileStream::new(kernel, result))
}

/// A fused node and how it is cut.
struct Layout<'a> {
    tiled: &'a Tiled,
    /// By part.
    reductions: Vec<Option<Reduction>>,
    cut: Cut,
    columns: usize,
    tile_rows: usize,
}

/// Where the parts' results are.
struct Places {
    of: Vec<Place>,
    scratch_bytes: usize,
}

impl Layout<'_> {
    /// The reduction that a part is, if tiles reduce rows, so that their results are reduced in turn.
    fn row_reduction(&self, i: usize) -> Option<&Reduction> {
        self.reductions[i].as_ref().filter(|r| r.axes[0])
    }

    /// Elements of a part's result: of a row, or of a tile where it reduces rows.
    fn len(&self, i: usize) -> usize {
        let Some(reduction) = &self.reductions[i] else { return self.columns };
        let rest = self.tiled.dims.iter().zip(&reduction.axes).skip(self.tiled.row_axes);
        rest.filter(|(_, reduced)| !**reduced).map(|(d, _)| d).product()
    }

    /// Bytes of a part's result for a tile of rows that it keeps.
    fn bytes(&self, i: usize) -> usize {
        self.tile_rows * self.len(i) * self.tiled.parts[i].output.dtype.size()
    }

    fn view(&self, i: usize, places: &Places) -> TileView {
        TileView { place: places.of[i], len: self.len(i), shared: false, dtype: self.tiled.parts[i].output.dtype }
    }

    /// A place for every part's result: outputs where they are, others in scratch memory that is used again.
    fn places(&self) -> Places {
        let parts = &self.tiled.parts;
        let reads = |p: &Part, of: usize| p.operands.contains(&Operand::Step(of));
        let last_read = |of: usize| parts.iter().rposition(|p| reads(p, of)).unwrap_or(of);
        let mut places = Places { of: Vec::with_capacity(parts.len()), scratch_bytes: 0 };
        // Scratch memory in use: where it begins, its bytes, and the part that reads it last.
        let mut used: Vec<(usize, usize, usize)> = Vec::new();
        let mut partials = 0;
        for i in 0..parts.len() {
            let own = self.tiled.outputs.iter().position(|o| *o == i);
            let output = own.or(self.tiled.product_in.filter(|_| i == 0));
            let place = match output {
                _ if self.row_reduction(i).is_some() => {
                    partials += 1;
                    Place::Partial(partials - 1)
                }
                Some(output) => Place::Output(output),
                None if let Some(at) = self.overwrites(i, &places.of, &used) => {
                    // What ends here goes on as this part's result.
                    let last = last_read(i);
                    used.iter_mut().filter(|u| u.0 == at).for_each(|u| u.2 = last);
                    Place::Scratch(at)
                }
                None => {
                    used.retain(|(_, _, last)| *last >= i);
                    let bytes = self.bytes(i).next_multiple_of(64);
                    let mut at = 0;
                    used.sort_unstable();
                    for &(start, len, _) in &used {
                        if at + bytes <= start {
                            break;
                        }
                        at = at.max(start + len);
                    }
                    used.push((at, bytes, last_read(i)));
                    places.scratch_bytes = places.scratch_bytes.max(at + bytes);
                    Place::Scratch(at)
                }
            };
            places.of.push(place);
        }
        places
    }

    /// The scratch memory of an operand that a part may compute its result in, since nothing reads it later.
    fn overwrites(&self, i: usize, places: &[Place], used: &[(usize, usize, usize)]) -> Option<usize> {
        let part = &self.tiled.parts[i];
        part.operands.iter().enumerate().find_map(|(at, operand)| match operand {
            Operand::Step(of) if part.op.traits().in_place.contains(&at) && self.bytes(*of) == self.bytes(i) => {
                let Place::Scratch(start) = places[*of] else { return None };
                used.iter().any(|u| u.0 == start && u.2 == i).then_some(start)
            }
            _ => None,
        })
    }

    fn part(&self, i: usize, places: &Places) -> Result<TilePart, String> {
        let part = &self.tiled.parts[i];
        let sizes = self.cut.sizes_of_tiles(self.tile_rows);
        let tiles = sizes.into_iter().map(|rows| Ok((rows, self.kernel(i, rows)?))).collect::<Result<_, String>>()?;
        let operands = part.operands.iter().zip(&part.inputs).map(|(operand, desc)| match operand {
            Operand::Input(at) => {
                let (tile, shared) = self.tile(desc, 1)?;
                Ok(TileView { place: Place::Input(*at), len: tile.len(), shared, dtype: desc.dtype })
            }
            Operand::Step(of) => Ok(self.view(*of, places)),
        });
        let operands = operands.collect::<Result<_, String>>()?;
        Ok(TilePart { tiles, operands, to: self.view(i, places) })
    }

    fn tile(&self, desc: &TensorDesc, rows: usize) -> Result<(TensorDesc, bool), String> {
        tile_desc(desc, &self.tiled.dims, self.tiled.row_axes, rows).ok_or_else(|| "it cannot be cut into rows".into())
    }

    /// A part's kernel for a tile of so many rows.
    fn kernel(&self, i: usize, rows: usize) -> Result<CpuKernel, String> {
        let part = &self.tiled.parts[i];
        if let Some(reduction) = &self.reductions[i] {
            let (tile, _) = self.tile(&part.inputs[0], rows)?;
            let (reduces_rows, rest) = (reduction.axes[0], &reduction.axes[self.tiled.row_axes..]);
            let axes: SmallVec<[bool; 8]> = std::iter::once(reduces_rows).chain(rest.iter().copied()).collect();
            let make = if reduces_rows { reduction.piece } else { reduction.whole };
            return make(tile.dtype, &tile.dims, &axes);
        }
        let tiles = part.inputs.iter().map(|d| self.tile(d, rows)).collect::<Result<Vec<_>, _>>()?;
        // What is known of a whole is not of its rows.
        let known = part.values.iter().zip(&tiles).map(|(v, (_, shared))| v.clone().filter(|_| *shared));
        let values: SmallVec<[_; 3]> = known.collect();
        let inputs: Vec<TensorDesc> = tiles.into_iter().map(|(tile, _)| tile).collect();
        let (output, _) = self.tile(&part.output, rows)?;
        let outputs = std::slice::from_ref(&output);
        part.op.cpu_kernel(&KernelContext { attrs: &part.attrs, inputs: &inputs, outputs, values: &values })
    }

    fn partial(&self, i: usize) -> Option<Result<Partial, String>> {
        let reduction = self.row_reduction(i)?;
        let output = self.tiled.outputs.iter().position(|o| *o == i)?;
        let (len, dtype) = (self.len(i), self.tiled.parts[i].output.dtype);
        let reduced = self.tiled.dims.iter().zip(&reduction.axes).filter(|(_, r)| **r);
        let count = reduced.map(|(d, _)| d).product();
        let tiles = self.cut.tiles(self.tile_rows);
        let merge = (reduction.merge)(dtype, &[tiles, len], &[true, false], count);
        Some(merge.map(|merge| Partial { output, len, dtype, merge }))
    }
}
