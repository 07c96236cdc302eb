#pragma once

#include <string>

namespace esteira {

// The path of another program of the project: beside this one, else found on PATH by its name.
std::string ProgramPath(const std::string& name);

}  // namespace esteira
