# The torch of the Python that builds: torch_dir, torch_version, and the toolkit it was built with, torch_cuda ("13.0") or
# torch_hip ("6.4"), each empty when it is not that.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(
  COMMAND ${Python_EXECUTABLE} -c
    "import torch, os; v = torch.version; print(os.path.dirname(torch.__file__), v.__version__, v.cuda or '', v.hip or '', sep=';')"
  OUTPUT_VARIABLE torch_answer OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_missing ERROR_QUIET)
if(torch_missing)
  message(FATAL_ERROR "everlong is built against the torch of ${Python_EXECUTABLE}, which has none: install torch >= 2.13 "
    "there first, then everlong with --no-build-isolation")
endif()
list(GET torch_answer 0 torch_dir)
list(GET torch_answer 1 torch_version)
list(GET torch_answer 2 torch_cuda)
list(GET torch_answer 3 torch_hip)
