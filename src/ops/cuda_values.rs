//! CUDA kernels of ops whose outputs are known when the step is planned, and are a few whole numbers.

use crate::base::DType;
use crate::device::cuda::{CudaArg, CudaBuffer, CudaCode, CudaLaunch};

/// The numbers that one launch takes as parameters.
const AT_ONCE: usize = 8;

/// Launches that write these numbers, which fit the type, to an output.
pub(super) fn values_launches(output: usize, dtype: DType, values: &[i64]) -> Vec<CudaLaunch> {
    let launch = |(at, values): (usize, &[i64])| {
        let to = CudaArg::Buffer(CudaBuffer::Output(output, at * AT_ONCE * dtype.size()));
        let numbers = (0..AT_ONCE).map(|i| CudaArg::I64(values.get(i).copied().unwrap_or(0)));
        let args = [to, CudaArg::size(values.len())].into_iter().chain(numbers).collect();
        let code = CudaCode::new(include_str!("cuda/values.cu")).with_type("T", dtype);
        CudaLaunch::Code { code, blocks: 1, threads: AT_ONCE as u32, shared_bytes: 0, args }
    };
    values.chunks(AT_ONCE).enumerate().map(launch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_take_several_launches() {
        let values: Vec<i64> = (0..19).collect();
        let launches = values_launches(1, DType::I64, &values);
        assert_eq!(launches.len(), 3);
        let CudaLaunch::Code { args, .. } = &launches[2] else { panic!("{launches:?}") };
        assert_eq!(
            args[..4],
            [CudaBuffer::Output(1, 128)]
                .map(CudaArg::Buffer)
                .into_iter()
                .chain([CudaArg::I64(3), CudaArg::I64(16), CudaArg::I64(17)])
                .collect::<Vec<_>>()[..]
        );
    }
}
