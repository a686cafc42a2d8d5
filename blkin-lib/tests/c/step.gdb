# Steps through every call of stepped() by single instructions, and prints how many there were.
set pagination off
set confirm off
set startup-with-shell off
set disable-randomization off
set language c
break *stepped
run
set $calls = 0
set $kernels_clock = (long)&__vdso_clock_gettime
set $steps = 0
while $_isvoid($_exitcode)
  set $entry = $sp
  while $sp <= $entry
    stepi
    set $steps = $steps + 1
    # The kernel's code (vDSO) starts again whenever the kernel has meanwhile updated the data that it reads: single-stepped, it
    # would never end.
    if $pc == $kernels_clock
      finish
    end
  end
  set $calls = $calls + 1
  continue
end
printf "stepped over %d calls by %d instructions\n", $calls, $steps
quit $_exitcode
