// The collectives of MPI: a JSON object a line, as tests/bench/collectives_bench prints them.
//   mpirun -np N mpi_collectives BYTES...
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { kTurns = 3, kMostIterations = 200, kOperations = 3 };
static const long kBytesATurn = 256L << 20;
static const char* const kNames[kOperations] = {"all_reduce", "reduce_scatter", "all_gather"};

static void Run(int operation, float* values, float* out, long count, int ranks) {
  if (operation == 0) {
    MPI_Allreduce(MPI_IN_PLACE, values, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else if (operation == 1) {
    MPI_Reduce_scatter_block(values, out, (int)(count / ranks), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else {
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, values, (int)(count / ranks), MPI_FLOAT,
                  MPI_COMM_WORLD);
  }
}

static int Ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double Measure(int operation, float* values, float* out, long bytes, int ranks) {
  long iterations = kBytesATurn / bytes;
  if (iterations > kMostIterations) iterations = kMostIterations;
  if (iterations < 2) iterations = 2;
  Run(operation, values, out, bytes / 4, ranks);
  double seconds[kTurns];
  for (int turn = 0; turn < kTurns; ++turn) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (long i = 0; i < iterations; ++i) Run(operation, values, out, bytes / 4, ranks);
    seconds[turn] = (MPI_Wtime() - begin) / (double)iterations;
  }
  qsort(seconds, kTurns, sizeof(double), Ascending);
  return seconds[kTurns / 2];
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int i = 1; i < argc; ++i) {
    const long bytes = atol(argv[i]);
    float* values = malloc((size_t)bytes);
    float* out = malloc((size_t)bytes);
    for (long j = 0; j < bytes / 4; ++j) values[j] = out[j] = 1e-3f;
    for (int operation = 0; operation < kOperations; ++operation) {
      const double seconds = Measure(operation, values, out, bytes, ranks);
      if (rank != 0) continue;
      printf("{\"operation\": \"%s\", \"ranks\": %d, \"bytes\": %ld, \"seconds\": %.9f}\n",
             kNames[operation], ranks, bytes, seconds);
      fflush(stdout);
    }
    free(values);
    free(out);
  }
  MPI_Finalize();
  return 0;
}
