//! Host arrays: what is fed, fetched, and held by constants.

use super::dtype::{Bool8, DType, Element};
use super::error::{Error, Result};
use super::shape::{Dims, Shape, num_elements};
use half::{bf16, f16};
use std::alloc::Layout;
use std::fmt;
use std::ptr::NonNull;

/// Owned bytes on a 64-byte boundary, zero when made.
pub struct AlignedBytes {
    start: NonNull<u8>,
    len: usize,
    /// What was allocated, and how: the bytes are a run of it.
    whole: Option<(NonNull<u8>, Layout)>,
}

// SAFETY: the bytes are owned by this value alone, like a Vec's.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// The boundary, in bytes: a cache line and an AVX-512 register.
    pub const ALIGN: usize = 64;

    /// The size of a page of memory, in bytes.
    pub const PAGE: usize = 4096;

    /// This many zero bytes, or `None` where the machine cannot give them.
    pub fn zeroed(len: usize) -> Option<AlignedBytes> {
        AlignedBytes::aligned(len, Self::ALIGN)
    }

    /// As [`AlignedBytes::zeroed`], in pages that hold nothing else.
    pub fn in_pages(len: usize) -> Option<AlignedBytes> {
        AlignedBytes::aligned(len, Self::PAGE)
    }

    fn aligned(len: usize, align: usize) -> Option<AlignedBytes> {
        if len == 0 {
            return Some(AlignedBytes { start: NonNull::<u64>::dangling().cast(), len, whole: None });
        }
        // Whole pages where the boundary is a page, and room to begin on the boundary. Asked for by a boundary that every
        // allocation has, zeroed memory is the system's untouched pages, which cost nothing before they are used.
        let size = if align == AlignedBytes::PAGE { len.checked_next_multiple_of(align)? } else { len };
        let layout = Layout::from_size_align(size.checked_add(align - NATURAL_ALIGN)?, NATURAL_ALIGN).ok()?;
        // SAFETY: the layout has a size above zero.
        let whole = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        let skipped = whole.as_ptr().align_offset(align);
        if skipped > align - NATURAL_ALIGN {
            // SAFETY: allocated just now with this layout.
            unsafe { std::alloc::dealloc(whole.as_ptr(), layout) };
            return None;
        }
        // SAFETY: what is skipped and the size after it are within the allocation.
        let start = unsafe { whole.add(skipped) };
        Some(AlignedBytes { start, len, whole: Some((whole, layout)) })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte's address.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl std::ops::Deref for AlignedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: start is valid for len initialised bytes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: start is valid for len initialised bytes, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if let Some((whole, layout)) = self.whole {
            // SAFETY: allocated in `aligned` with this layout.
            unsafe { std::alloc::dealloc(whole.as_ptr(), layout) }
        }
    }
}

/// The boundary that allocations have without asking.
const NATURAL_ALIGN: usize = 16;

/// A dense array in host memory, row-major.
pub struct Array {
    dtype: DType,
    dims: Dims,
    bytes: AlignedBytes,
}

impl Array {
    /// An array of zeros.
    ///
    /// # Errors
    /// When the size does not fit, or the host has no memory for it.
    pub fn zeros(dtype: DType, dims: &[usize]) -> Result<Array> {
        if dtype.is_opaque() {
            return Err(Error::invalid(format!("there are no arrays of {dtype}: turret holds no values of that type")));
        }
        let len = num_elements(dims).and_then(|n| n.checked_mul(dtype.size()));
        let bytes = len.and_then(AlignedBytes::zeroed).ok_or_else(|| {
            let shape = Shape::known(dims);
            Error::new(super::error::Code::ResourceExhausted, format!("no host memory for an array of {dtype} {shape}"))
        })?;
        Ok(Array { dtype, dims: dims.into(), bytes })
    }

    /// An array with these sizes and elements.
    ///
    /// # Errors
    /// When the number of elements is not the sizes' product.
    pub fn new<T: Element>(dims: &[usize], elements: &[T]) -> Result<Array> {
        if num_elements(dims) != Some(elements.len()) {
            return Err(Error::invalid(format!(
                "an array of shape {} wants {} elements, got {}",
                Shape::known(dims),
                num_elements(dims).map_or("too many".to_string(), |n| n.to_string()),
                elements.len()
            )));
        }
        let mut array = Array::zeros(T::DTYPE, dims)?;
        array.as_mut_slice::<T>()?.copy_from_slice(elements);
        Ok(array)
    }

    /// An array without dimensions.
    pub fn scalar<T: Element>(value: T) -> Array {
        Array::new(&[], &[value]).expect("one element fits")
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The sizes.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The sizes as a shape.
    pub fn shape(&self) -> Shape {
        Shape::known(&self.dims)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first byte's address, for buffers that kernels write.
    pub(crate) fn start(&self) -> *mut u8 {
        self.bytes.as_ptr()
    }

    /// The raw bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The raw bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The elements.
    ///
    /// # Errors
    /// When the array is of another type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.check_type::<T>()?;
        // SAFETY: the type matches, the start is aligned to 64 bytes, and every bit pattern is legal.
        Ok(unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.len()) })
    }

    /// The elements, to write.
    ///
    /// # Errors
    /// When the array is of another type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.check_type::<T>()?;
        // SAFETY: as in `as_slice`, and the borrow is unique.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.bytes.as_ptr().cast(), self.len()) })
    }

    fn check_type<T: Element>(&self) -> Result<()> {
        if T::DTYPE == self.dtype {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "an array of {} was read as {}; cast it, or read it as {}",
            self.dtype,
            T::DTYPE,
            self.dtype
        )))
    }

    /// The elements as `f64`, whatever their type (bool is 0 or 1).
    pub fn to_f64(&self) -> Vec<f64> {
        (0..self.len()).map(|i| self.get_f64(i)).collect()
    }

    /// The elements converted to another type, rounded to nearest where needed (bool: nonzero is true).
    ///
    /// # Errors
    /// When the host has no memory for it.
    pub fn cast(&self, dtype: DType) -> Result<Array> {
        if dtype == self.dtype {
            return Ok(self.clone());
        }
        if let (Some(ints), DType::I64) = (self.to_i64(), dtype) {
            return Array::new(&self.dims, &ints);
        }
        Array::from_f64(dtype, &self.dims, &self.to_f64())
    }

    /// The i-th element, in row-major order, as `f64`.
    ///
    /// # Panics
    /// When there is no i-th element, as indexing a slice does.
    pub fn get_f64(&self, i: usize) -> f64 {
        fn at<T: Element>(array: &Array, i: usize) -> T {
            array.as_slice::<T>().expect("type was matched")[i]
        }
        match self.dtype {
            DType::F32 => at::<f32>(self, i).into(),
            DType::F64 => at::<f64>(self, i),
            DType::I32 => at::<i32>(self, i).into(),
            DType::I64 => at::<i64>(self, i) as f64,
            DType::Bool => at::<Bool8>(self, i).0.into(),
            DType::F16 => at::<f16>(self, i).into(),
            DType::BF16 => at::<bf16>(self, i).into(),
            DType::U8 => at::<u8>(self, i).into(),
            DType::Opaque(_) => unreachable!("no array is of an opaque type"),
        }
    }

    /// The integers of an `int32` or `int64` array.
    pub fn to_i64(&self) -> Option<Vec<i64>> {
        match self.dtype {
            DType::I32 => Some(self.as_slice::<i32>().ok()?.iter().map(|&v| v.into()).collect()),
            DType::I64 => Some(self.as_slice::<i64>().ok()?.to_vec()),
            _ => None,
        }
    }

    /// An array of a type and shape from values given as `f64`, rounded to nearest (bool: nonzero is true).
    ///
    /// # Errors
    /// When the number of values is not the sizes' product.
    pub fn from_f64(dtype: DType, dims: &[usize], values: &[f64]) -> Result<Array> {
        match dtype {
            DType::F32 => Array::new(dims, &values.iter().map(|&v| v as f32).collect::<Vec<_>>()),
            DType::F64 => Array::new(dims, values),
            DType::I32 => Array::new(dims, &values.iter().map(|&v| v.round() as i32).collect::<Vec<_>>()),
            DType::I64 => Array::new(dims, &values.iter().map(|&v| v.round() as i64).collect::<Vec<_>>()),
            DType::Bool => Array::new(dims, &values.iter().map(|&v| Bool8::from(v != 0.0)).collect::<Vec<_>>()),
            DType::F16 => Array::new(dims, &values.iter().map(|&v| f16::from_f64(v)).collect::<Vec<_>>()),
            DType::BF16 => Array::new(dims, &values.iter().map(|&v| bf16::from_f64(v)).collect::<Vec<_>>()),
            DType::U8 => Array::new(dims, &values.iter().map(|&v| v.round() as u8).collect::<Vec<_>>()),
            DType::Opaque(_) => Array::zeros(dtype, dims),
        }
    }
}

impl Clone for Array {
    fn clone(&self) -> Array {
        let mut copy = Array::zeros(self.dtype, &self.dims).expect("its twin fitted");
        copy.bytes_mut().copy_from_slice(&self.bytes);
        copy
    }
}

/// Bit-equal elements, type and shape (so a NaN equals itself).
impl PartialEq for Array {
    fn eq(&self, other: &Array) -> bool {
        self.dtype == other.dtype && self.dims == other.dims && *self.bytes == *other.bytes
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        write!(f, "{} {} ", self.dtype, self.shape())?;
        let text = |i: usize| match self.dtype {
            // The shortest text that is this float32, rather than its neighbour among the float64.
            DType::F32 | DType::F16 | DType::BF16 => (self.get_f64(i) as f32).to_string(),
            _ => self.get_f64(i).to_string(),
        };
        let shown: Vec<String> = (0..self.len().min(SHOWN)).map(text).collect();
        let more = if self.len() > SHOWN { ", …" } else { "" };
        write!(f, "[{}{more}]", shown.join(", "))
    }
}

/// What can be given as constant data: a number, a (nested) array of numbers, a vector, an [`Array`].
pub trait IntoArray {
    /// The array.
    fn into_array(self) -> Array;
}

impl IntoArray for Array {
    fn into_array(self) -> Array {
        self
    }
}

impl IntoArray for &Array {
    fn into_array(self) -> Array {
        self.clone()
    }
}

macro_rules! into_array {
    ($($t:ty),*) => {$(
        impl IntoArray for $t {
            fn into_array(self) -> Array {
                Array::scalar(self)
            }
        }
        impl IntoArray for Vec<$t> {
            fn into_array(self) -> Array {
                Array::new(&[self.len()], &self).expect("the length is the size")
            }
        }
        impl IntoArray for &[$t] {
            fn into_array(self) -> Array {
                Array::new(&[self.len()], self).expect("the length is the size")
            }
        }
        impl<const N: usize> IntoArray for [$t; N] {
            fn into_array(self) -> Array {
                Array::new(&[N], &self).expect("the length is the size")
            }
        }
        impl<const M: usize, const N: usize> IntoArray for [[$t; N]; M] {
            fn into_array(self) -> Array {
                Array::new(&[M, N], self.as_flattened()).expect("the lengths are the sizes")
            }
        }
    )*};
}

into_array!(f32, f64, i32, i64, f16, bf16, u8);

impl IntoArray for bool {
    fn into_array(self) -> Array {
        Array::scalar(Bool8::from(self))
    }
}

impl IntoArray for Vec<bool> {
    fn into_array(self) -> Array {
        let stored: Vec<Bool8> = self.into_iter().map(Bool8::from).collect();
        Array::new(&[stored.len()], &stored).expect("the length is the size")
    }
}
