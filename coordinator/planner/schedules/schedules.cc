#include "coordinator/planner/schedules/schedules.h"

#include "absl/strings/str_join.h"

namespace esteira {

const std::vector<Schedule>& TrainingSchedules() {
  static const auto& schedules = *new std::vector<Schedule>{
      {"gpipe", GpipeSchedule},
      {"1f1b", OneForwardOneBackwardSchedule},
  };
  return schedules;
}

const Schedule* FindSchedule(absl::string_view name) {
  for (const Schedule& schedule : TrainingSchedules()) {
    if (schedule.name == name) return &schedule;
  }
  return nullptr;
}

std::string ScheduleNames() {
  return absl::StrJoin(TrainingSchedules(), ", ", [](std::string* out, const Schedule& schedule) {
    out->append(schedule.name);
  });
}

}  // namespace esteira
