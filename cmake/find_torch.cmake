# The torch that everlong is built against: torch_dir, torch_version, and the toolkit it was built with, torch_cuda ("13.0") or
# torch_hip ("6.4"), each empty when it is not that. Read from torch's files, which any Python may have: the operators stand
# on torch's stable ABI, and nothing here is of one Python.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
set(EVERLONG_TORCH "" CACHE PATH "Folder of a torch package; by default that of the Python that builds")
set(torch_dir "${EVERLONG_TORCH}")
if(NOT torch_dir)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import importlib.util as i; print(i.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
execute_process(
  COMMAND ${Python_EXECUTABLE} -c
    "import runpy, sys; v = runpy.run_path(sys.argv[1]); print(v['__version__'], v['cuda'] or '', v['hip'] or '', sep=';')"
    ${torch_dir}/version.py
  OUTPUT_VARIABLE torch_answer OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_missing ERROR_QUIET)
if(torch_missing)
  message(FATAL_ERROR "everlong is built against the torch of ${Python_EXECUTABLE}, which has none: install torch >= 2.11 "
    "there first, then everlong with --no-build-isolation; or name a torch package's folder as EVERLONG_TORCH")
endif()
list(GET torch_answer 0 torch_version)
list(GET torch_answer 1 torch_cuda)
list(GET torch_answer 2 torch_hip)
