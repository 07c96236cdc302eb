#include "client/cli.h"

int main(int argc, char** argv) { return esteira::RunCommandLine(argc, argv); }
