// A shared library with the names of NCCL and of the CUDA runtime. Each function only notes which
// one it is.
#define ESTEIRA_STUB(name)       \
  extern "C" int name() {        \
    esteira_last_called = #name; \
    return 0;                    \
  }

extern "C" {
const char* esteira_last_called = "";
}

ESTEIRA_STUB(ncclGetVersion)
ESTEIRA_STUB(ncclGetUniqueId)
ESTEIRA_STUB(ncclCommInitRankConfig)
ESTEIRA_STUB(ncclCommGetAsyncError)
ESTEIRA_STUB(ncclCommFinalize)
ESTEIRA_STUB(ncclCommDestroy)
ESTEIRA_STUB(ncclCommAbort)
ESTEIRA_STUB(ncclGetErrorString)
ESTEIRA_STUB(ncclGetLastError)
ESTEIRA_STUB(ncclGroupStart)
ESTEIRA_STUB(ncclGroupEnd)
ESTEIRA_STUB(ncclAllGather)
ESTEIRA_STUB(ncclReduceScatter)
ESTEIRA_STUB(ncclBroadcast)
ESTEIRA_STUB(ncclSend)
ESTEIRA_STUB(ncclRecv)
ESTEIRA_STUB(cudaSetDevice)
ESTEIRA_STUB(cudaStreamCreateWithFlags)
ESTEIRA_STUB(cudaStreamDestroy)
ESTEIRA_STUB(cudaStreamQuery)
ESTEIRA_STUB(cudaMalloc)
ESTEIRA_STUB(cudaFree)
ESTEIRA_STUB(cudaGetErrorString)
