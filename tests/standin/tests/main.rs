//! The stand-in's own tests, with cudarc as it is. They share one process and so one driver: each has it to itself.

mod suite {
    mod blas;
    mod driving;
    mod faults;
    mod graphs;
    mod harness;
    mod installing;
    mod kernels;
    mod nccl;
    mod pipelines;
    mod random;
}
