"""The part of CloudFormation that sagemaker/notebook.yaml needs, without AWS.

It checks the parameters and rules of a template, and fills in its resources.
"""

import base64
import re

import yaml

PSEUDO = {"AWS::AccountId": "111122223333", "AWS::Region": "eu-west-1", "AWS::Partition": "aws"}
ABSENT = object()  # AWS::NoValue


class Loader(yaml.SafeLoader):
    """YAML with the short forms of the intrinsic functions: ``!Sub x`` is ``{"Fn::Sub": "x"}``."""


def _short_form(loader, name, node):
    kinds = {yaml.ScalarNode: loader.construct_scalar, yaml.SequenceNode: loader.construct_sequence}
    value = kinds[type(node)](node, **({"deep": True} if isinstance(node, yaml.SequenceNode) else {}))
    if name == "GetAtt":
        value = value.split(".", 1)
    return {name if name in ("Ref", "Condition") else f"Fn::{name}": value}


Loader.add_multi_constructor("!", _short_form)


def load_template(path):
    return yaml.load(path.read_text(encoding="utf-8"), Loader)


class Stack:
    """A template with the parameters of a user."""

    def __init__(self, template, given):
        self.template = template
        self.values = {name: about.get("Default") for name, about in template["Parameters"].items()}
        self.values.update(given)

    def validation_errors(self):
        """Return an error for each invalid parameter and each broken rule."""
        errors = []
        for name, about in self.template["Parameters"].items():
            errors += [f"{name}: {text}" for text in _parameter_faults(about, self.values[name])]
        for rule in self.template.get("Rules", {}).values():
            if self.fill(rule.get("RuleCondition", True)):
                errors += [
                    assertion["AssertDescription"]
                    for assertion in rule["Assertions"]
                    if not self.fill(assertion["Assert"])
                ]
        return errors

    def resources(self):
        """Return {name: (type, properties)} of the resources whose condition holds."""
        return {
            name: (about["Type"], self.fill(about["Properties"]))
            for name, about in self.template["Resources"].items()
            if "Condition" not in about or self.evaluate_condition(about["Condition"])
        }

    def evaluate_condition(self, name):
        return self.fill(self.template["Conditions"][name])

    def fill(self, value):
        """Return a value of the template with all intrinsic functions evaluated."""
        if isinstance(value, list):
            return [item for item in map(self.fill, value) if item is not ABSENT]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            [(name, argument)] = value.items()
            if name in FUNCTIONS:
                return FUNCTIONS[name](self, argument)
            if name.startswith("Fn::"):
                raise ValueError(f"unknown function {name}")
        filled = {key: self.fill(item) for key, item in value.items()}
        return {key: item for key, item in filled.items() if item is not ABSENT}

    def resolve_reference(self, name):
        if name == "AWS::NoValue":
            return ABSENT
        if name in PSEUDO or name in self.values:
            return PSEUDO.get(name, self.values.get(name))
        return name + "-made" if name in self.template["Resources"] else _raise_unknown_name(name)

    def resolve_attribute(self, name, attribute):
        if name not in self.template["Resources"]:
            return _raise_unknown_name(f"{name}.{attribute}")
        properties = self.template["Resources"][name]["Properties"]
        if attribute in properties:
            return self.fill(properties[attribute])
        return (
            f"arn:aws:iam::{PSEUDO['AWS::AccountId']}:role/{name}"
            if attribute == "Arn"
            else _raise_unknown_name(f"{name}.{attribute}")
        )

    def substitute(self, text):
        def replace_name(match):
            name, _, attribute = match[1].partition(".")
            return str(self.resolve_attribute(name, attribute) if attribute else self.resolve_reference(name))

        return re.sub(r"\$\{([^}!]+)\}", replace_name, text)


def _raise_unknown_name(name):
    raise ValueError(f"{name} is not a parameter, resource or attribute")


def _parameter_faults(about, value):
    if value is None:
        yield "required, but missing"
        return
    if "AllowedValues" in about and value not in about["AllowedValues"]:
        yield f"unknown value {value!r}: choose {', '.join(map(str, about['AllowedValues']))}"
    if "AllowedPattern" in about and not re.search(about["AllowedPattern"], str(value)):
        yield f"{value!r} does not match {about['AllowedPattern']}"
    if len(str(value)) > about.get("MaxLength", 4096):
        yield f"longer than {about.get('MaxLength', 4096)} characters"
    if about["Type"] == "Number" and not about.get("MinValue", value) <= value <= about.get("MaxValue", value):
        yield f"{value} is not between {about.get('MinValue')} and {about.get('MaxValue')}"


FUNCTIONS = {
    "Ref": lambda stack, name: stack.resolve_reference(name),
    "Condition": lambda stack, name: stack.evaluate_condition(name),
    "Fn::Sub": lambda stack, text: stack.substitute(text),
    "Fn::GetAtt": lambda stack, parts: stack.resolve_attribute(*parts),
    "Fn::If": lambda stack, parts: stack.fill(parts[1] if stack.evaluate_condition(parts[0]) else parts[2]),
    "Fn::Equals": lambda stack, parts: len(set(map(str, stack.fill(parts)))) == 1,
    "Fn::Not": lambda stack, parts: not stack.fill(parts[0]),
    "Fn::And": lambda stack, parts: all(stack.fill(parts)),
    "Fn::Or": lambda stack, parts: any(stack.fill(parts)),
    "Fn::Contains": lambda stack, parts: stack.fill(parts[1]) in stack.fill(parts[0]),
    "Fn::Split": lambda stack, parts: stack.fill(parts[1]).split(parts[0]),
    "Fn::Join": lambda stack, parts: parts[0].join(map(str, stack.fill(parts[1]))),
    "Fn::Base64": lambda stack, text: base64.b64encode(stack.fill(text).encode("utf-8")).decode("ascii"),
}
