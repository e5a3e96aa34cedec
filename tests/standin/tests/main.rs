//! The stand-in's own tests, with cudarc as it is. They share one process and so one driver: each has it to itself.

mod suite {
    mod blas;
    mod faults;
    mod graphs;
    mod harness;
    mod kernels;
    mod nccl;
    mod pipelines;
}
