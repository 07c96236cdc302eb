// The three macros of the project. Nothing else may hide control flow.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define ESTEIRA_CONCAT_INNER(a, b) a##b
#define ESTEIRA_CONCAT(a, b) ESTEIRA_CONCAT_INNER(a, b)

// Returns the status of `expression` from the enclosing function unless it is OK.
#define RETURN_IF_ERROR(expression)                            \
  do {                                                         \
    absl::Status status_macro_result = (expression);           \
    if (!status_macro_result.ok()) return status_macro_result; \
  } while (false)

// ASSIGN_OR_RETURN(auto x, F()): assigns the value of a StatusOr, or returns its status.
#define ASSIGN_OR_RETURN(declaration, expression) \
  ASSIGN_OR_RETURN_INNER(ESTEIRA_CONCAT(status_or_, __LINE__), declaration, expression)
#define ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                   \
  if (!result.ok()) return std::move(result).status();          \
  declaration = *std::move(result)

// An invariant of our own code: the process dies when it does not hold. Never for input.
#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
